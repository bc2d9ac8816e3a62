"""What must hold in every simulated scenario: `checker` has the table of invariants, the other modules one each."""
