"""HTTP layer shared by API and dashboard: request parsing, problems (RFC 9457), authentication, idempotency keys."""
