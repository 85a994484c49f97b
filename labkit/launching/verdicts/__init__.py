"""How ranks ended, what that proves, and the words of it."""
