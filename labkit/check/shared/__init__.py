"""What a learner who opts in shows to the instructor of a classroom.

``opting`` is ``lab.progress(share="Ada")`` and what follows from it: one file, in the folder of the
classroom's board. ``content`` is what such a file holds, written and read; ``mistakes`` names a
mistake in words that hold nothing of the answer. The board itself is ``labkit.classroom``.
"""
