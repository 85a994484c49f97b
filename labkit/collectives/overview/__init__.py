"""All at a glance: ``picture`` draws what every rank holds before and after each of six
collectives, ``ways_picture`` who sends to whom in an all-reduce."""
