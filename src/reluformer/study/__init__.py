"""The paper's claims as experiments."""
