"""Why a job is slow or stuck, asked while it runs.

`stacks` lets the core read this process's call stacks; `asking` collects the answers of a job's processes; `evidence`
parses them; `waiting`, `activity` and `network` find out what they mean, and `verdict` puts that together; `words`
writes it. `netsum why` and `netsum.why` use it, and the errors of operations that time out.
"""
