"""Requests and answers: the HTTP contract, authentication, idempotency keys."""
