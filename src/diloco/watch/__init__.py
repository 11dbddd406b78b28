"""Reading and showing run folders. Imports neither torch nor the trainer."""
