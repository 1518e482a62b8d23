"""What a sandbox did, for later: the audit log, what it says of a file, and what follows from it.

`log` writes the lines, `lines` reads them back, `activity` sums them up by destination, and
`suggest` makes the smallest policy that covers them. Only `log` writes, and only its own file.
"""
