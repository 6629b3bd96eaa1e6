"""What did happen: runs recorded, plans captured and compared, throughput, reports."""
