"""Pages: the frame, forms, charts and drawings."""
