"""What every route, page and command shares."""
