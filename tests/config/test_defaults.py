"""The tree of defaults."""

from bertlab.config.defaults import base_config


def test_a_changed_config_changes_no_other():
    """Placeholders are objects: two configs must not share them."""
    changed = base_config()
    changed.optimizer.warmup_steps = 3
    changed.data.seq_len = 16
    assert base_config().optimizer.warmup_steps is None
    assert base_config().data.seq_len == 128
