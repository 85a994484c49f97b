"""Where ranks come from: a zygote that has imported torch forks them; what is said between it, them and
the notebook."""
