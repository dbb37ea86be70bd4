"""How fast Rota is: `make bench`. It only prints; nothing here is a test."""
