"""What must never happen: the rules, the ledger and history they are judged on, mutants to prove them."""
