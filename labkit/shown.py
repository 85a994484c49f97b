"""What shows itself: a noun that stands at the end of a notebook's cell is drawn there, as SVG, PNG
and text, in the language in use. Nothing of ``labkit.pictures`` is loaded before that."""

from typing import TYPE_CHECKING

from labkit import words

if TYPE_CHECKING:
    from labkit.pictures.drawing import Picture

Said = str | dict[str, str]
"""words, or {"en": words, "zh": the same in Chinese}"""


class Shown:
    """A noun with a picture of its own. Whoever inherits writes ``_picture(language)``."""

    def _picture(self, language: str) -> "Picture":
        raise NotImplementedError

    def picture(self, *, title: Said = "", language: str | None = None) -> "Picture":
        """The noun as a drawing: under its own name unless a title is given, in the language in
        use unless one is named."""
        from labkit.pictures import mime

        return mime.renamed(self._picture(words.spoken_in(language)), title)

    def bundle(self, *, title: Said = "", language: str | None = None) -> dict[str, str]:
        """The drawing by mime type: text/html, image/png, text/plain."""
        from labkit.pictures import mime

        return mime.bundle(self.picture(title=title, language=language))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()
