"""What one who teaches a room needs: ``python -m labkit classroom``.

``assignments`` writes the chapters as a course for nbgrader, whose graders are the checks of the
subjects. ``hub`` writes a JupyterHub for a room: ``hub_run`` says what it is told, ``seat_run``
starts a learner's server. ``kernel_run`` runs the kernel of a submission under limits of time,
processes and memory.
"""
