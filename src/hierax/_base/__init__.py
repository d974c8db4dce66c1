"""What everything stands on: errors, trees, checks of settings, words and tables."""
