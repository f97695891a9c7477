"""Pictures as pixels: SVG is what netsum draws, PNG is made from it."""

PNG_WIDTH = 1600
"""Pixels: two for each unit of the drawings."""


class PictureError(Exception):
    """A picture that cannot be made here; the message says what to install."""


def png(svg: str) -> bytes:
    """The picture as PNG, 1600 pixels wide. PictureError without resvg, which draws it."""
    try:
        import resvg_py
    except ImportError:
        raise PictureError("a .png needs resvg-py: pip install 'netsum[pictures]', or write an .svg") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, width=PNG_WIDTH))
