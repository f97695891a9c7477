"""What `netsum doctor` looks at: this machine (`machine`), the fabric (`fabric`), and a sum through it (`selftest`)."""
