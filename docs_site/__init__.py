"""The documentation site: `make docs` builds it with MkDocs from docs/, pages of the root and the code itself."""
