"""Archives with the same bytes wherever and whenever they are made."""

import io
import tarfile


def tar(entries: list[tuple[str, bytes | None, int, int]], epoch: int) -> bytes:
    """An archive of files (path, content, mode, owner); those without content are folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content, mode, owner in entries:
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.mode, entry.uid, entry.gid = epoch, mode, owner, owner
            entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            entry.size = len(content or b"")
            archive.addfile(entry, io.BytesIO(content or b""))
    return buffer.getvalue()
