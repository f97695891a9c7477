"""A page that shows a fabric live: `netsum dashboard`.

`watch` asks the controller twice a second and keeps what the page needs; `view` and `events` turn a status into what it
draws, `words` says why a job is slow, `server` serves it on a loopback address. The page itself is in `page`: its own
modules, and the libraries bundled as `vendor.js`.
"""
