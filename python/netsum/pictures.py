"""Conversion of pictures to PNG: netsum draws SVG."""

PNG_WIDTH = 1600
"""Pixels: two for each unit of the drawings."""


class PictureError(Exception):
    """A picture that cannot be rendered; the message says what to install."""


def png(svg: str) -> bytes:
    """Render the SVG as PNG, 1600 pixels wide. Raises PictureError without resvg."""
    try:
        import resvg_py
    except ImportError:
        raise PictureError("a .png needs resvg-py: pip install 'netsum[pictures]', or write an .svg") from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, width=PNG_WIDTH))
