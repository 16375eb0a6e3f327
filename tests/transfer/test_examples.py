"""What did not fit is counted, whatever of an example it is."""

from bertlab.transfer.examples import cut_lines, total_cut


def test_an_example_is_cut_if_anything_of_it_is():
    counts = total_cut(
        [
            {"pieces": (3, 10), "answers": (0, 1)},
            {"pieces": (0, 8), "answers": (1, 1)},
            {"pieces": (0, 5), "answers": (0, 1)},
        ]
    )
    assert counts == {
        "examples": 2,
        "of_examples": 3,
        "pieces": 3,
        "of_pieces": 23,
        "answers": 1,
        "of_answers": 3,
    }
    (line,) = cut_lines({"test": {"squad": counts}, "valid": {"squad": total_cut([])}})
    assert all(text in line for text in ("squad", "test", "2 of 3", "3 of 23", "1 of 3"))
