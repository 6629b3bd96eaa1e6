"""What must never happen: the rules, the ledger and history they are judged on, and the mutants that prove
them."""
