"""Schedules of other tools: read as they are written, judged in their own terms, and made schedules of ours.

reader      MSCCL XML → Algorithm          all spellings; every node with its place in the file
network     Algorithm → Network            blocks, connections, dependences; what cannot be joined up is a finding
layout      which cells buffers are, what is in them at the start and promised at the end
running     one run decides deadlock at a depth; the least depth at which it runs
races       accesses that nothing puts in order
values      what every cell holds, followed symbolically
judge       all of it: right, wrong or undecided, and why
convert     Algorithm → Schedule
"""
