"""What one who teaches a room needs: ``python -m labkit classroom``.

``assignments`` writes the chapters as a course for nbgrader, whose graders are the checks of the
subjects. ``kernel_run`` runs the kernel of a submission under limits of time, processes and memory.
"""
