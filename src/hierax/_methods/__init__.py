"""Published methods, one file each, and the parts they are combined from."""
