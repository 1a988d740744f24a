"""Small programs to learn from. Standard library alone; not part of the installed package."""
