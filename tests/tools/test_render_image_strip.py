"""A strip has every partial image of a model in order, one row per seed."""

import numpy as np
from PIL import Image

from tests.server import toy_image_models
from tools.render_image_strip import main, make_strip


def test_strip_has_all_partial_images_of_each_seed(tmp_path):
    file = tmp_path / "strip.png"
    main([f"{toy_image_models.__file__}:ImageGenerator", "a cat", "-o", str(file), "--images", "3", "--seed", "4", "5"])
    requests = [toy_image_models.ImageRequest("a cat", seed=seed, partial_images=2) for seed in (4, 5)]
    lines = [toy_image_models.ImageGenerator().run(request).emissions for request in requests]
    first, second = ([emission.value for emission in line] for line in lines)
    assert len(first) == 3
    whole = np.concatenate([np.concatenate(first, 1), np.concatenate(second, 1)])
    assert np.array_equal(np.asarray(make_strip(lines)), whole)
    written = np.asarray(Image.open(file).convert("RGB"))
    assert written.shape == whole.shape
    assert np.abs(written - whole.astype(int)).mean() < 8  # the file has 256 colors
    assert first[0].std() > 2 * first[-1].std()
