"""Jobs while they run: their newest minutes in memory, judged again and again, and sealed at their end."""
