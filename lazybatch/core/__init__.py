"""The pure core: every scheduling decision, and nothing else.

Owns: queues, stacks, policies, and what they predict with.
Must not know: clocks, threads, frameworks, NumPy; how decisions are carried out.
"""
