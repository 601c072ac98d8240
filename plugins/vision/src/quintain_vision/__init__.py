"""Pictures in messages: read, checked, stored once, and referred to in the text of a message.

What models see of them is in `quintain_vision.source`, which needs torch and transformers. So does
`freeze`, which is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .files import PictureError as PictureError
    from .files import PictureLimits as PictureLimits
    from .files import StoreError as StoreError
    from .files import of_row as of_row
    from .messages import content_json as content_json
    from .messages import message as message
    from .messages import parts as parts
    from .messages import picture as picture
    from .messages import shown as shown
    from .messages import thumbnails as thumbnails
    from .messages import tool_picture as tool_picture
    from .source import freeze as freeze
    from .store import stored as stored

__getattr__, __dir__ = lazy_names(__name__)
