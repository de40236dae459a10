"""Jobs while they run: their newest minutes, judged again and again."""
