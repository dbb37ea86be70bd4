"""Dashboard layer shared by all pages: rendering, forms, sessions, charts."""
