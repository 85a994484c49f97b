"""What ranks did: traces of time, bytes of messages, bytes of memory; and pacing, which states a
duration."""
