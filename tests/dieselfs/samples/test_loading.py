import io
import sys

import pytest
from PIL import Image

from dieselfs.errors import InvalidInput
from dieselfs.samples.loading import check_loader, load_image


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_an_image_is_loaded_as_rgb(mode: str) -> None:
    content = io.BytesIO()
    original = Image.linear_gradient("L").resize((20, 10)).convert(mode)
    original.save(content, "PNG")
    image = load_image(content.getvalue())
    assert (image.mode, image.size) == ("RGB", (20, 10))
    assert image.tobytes() == original.convert("RGB").tobytes()


def test_without_pillow_only_other_loaders_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loader(load_image)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidInput, match=r"pip install pillow, or give loader=bytes"):
        check_loader(load_image)
    check_loader(bytes)
