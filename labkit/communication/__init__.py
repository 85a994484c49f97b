"""Communication, hidden and made less: the exercises of chapter 11."""
