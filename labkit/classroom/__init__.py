"""What one who teaches a room needs: ``python -m labkit classroom``.

``assignments`` writes the chapters as a course for nbgrader, whose graders are the checks of the
subjects. ``hub`` writes a JupyterHub for a room: ``hub_run`` says what it is told, ``seat_run``
starts a learner's server. ``kernel_run`` runs the kernel of a submission under limits of time,
processes and memory.

``board`` shows how far everybody is, as a live page on this machine. ``room`` makes a room of what
learners share (``labkit.check.shared``), ``room_run`` reads it from the board's folder, in which
every file is a stranger's, ``room_picture`` is the page, ``page_run`` serves it.
"""
