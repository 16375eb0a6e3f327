"""Tables, lines of a label and a text, multiple choice: what is read, and the line that an error names."""

import pytest

from bertlab.errors import UserError
from bertlab.transfer.tasks import find_task, labelled_lines, load_task, load_tasks, multiple_choice, table

REVIEWS = table("reviews", train="train.tsv", valid="dev.tsv", text="review", label="stars")


def write(folder, **files):
    """Writes NAME_SUFFIX="text" as NAME.SUFFIX; a later "_" of the name stays."""
    for name, text in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text, encoding="utf-8")
    return {"directory": str(folder)}


def all_of(data):
    return sorted((e for examples in data.examples.values() for e in examples), key=lambda example: int(example.id))


def texts(examples):
    return [example.texts for example in examples]


def test_a_table_is_read_by_its_header(tmp_path):
    options = write(
        tmp_path,
        train_tsv='\ufeffstars\treview\r\ngood\t"Fine" — it\u2028said\u0085 so.\r\n\r\nbad\t"Not\r\ngood\t\r\nbad\tno',
        dev_tsv="review\tstars\nx\tbad\ny\tgood\n",
    )
    data = load_task(REVIEWS, options | {"dev": "valid"})
    assert data.labels == ("bad", "good")
    assert texts(data.examples["train"]) == [('"Fine" — it\u2028said\u0085 so.',), ('"Not',), ("",), ("no",)]
    assert [example.label for example in data.examples["train"]] == [1, 0, 1, 0]
    # The empty line counts as a line; quotes and a field that is not closed do not.
    assert [example.where.rpartition(":")[2] for example in data.examples["train"]] == ["2", "4", "5", "6"]
    assert [example.id for example in data.examples["train"]] == ["0", "1", "2", "3"]
    assert texts(data.examples["valid"]) == [("x",), ("y",)] and data.examples["test"] == data.examples["valid"]


def test_quoted_fields_hold_delimiters_quotes_and_line_ends(tmp_path):
    long = "word " * 40_000
    own = table(
        "own", train="a.csv", valid="b.csv", test="b.csv", text="t", pair="u", label="y", id="n", label_names=("p", "q")
    )
    text = 'n,y,t,u\n7,p,"a, ""b""\nc",d\n8,q,' + long + ",\n"
    options = write(tmp_path, a_csv=text, b_csv="n,y,t,u\n1,p,x,y\n")
    data = load_task(own, options)
    assert texts(data.examples["train"]) == [('a, "b"\nc', "d"), (long, "")]
    assert [example.id for example in data.examples["train"]] == ["7", "8"]
    assert [example.where.rpartition(":")[2] for example in data.examples["train"]] == ["2", "4"]
    assert data.labels == ("p", "q") and data.examples["valid"][0].label == 0
    write(tmp_path, a_csv=text + "9,r,a,b\n")
    with pytest.raises(UserError, match=r"a\.csv:5: .* label 'r', but label_names are p, q;"):
        load_task(own, options)


def test_a_test_file_may_lack_its_labels(tmp_path):
    own = table("own", train="train.tsv", valid="dev.tsv", test="test.tsv", text="review", label="stars")
    options = write(
        tmp_path, train_tsv="review\tstars\na\t1\nb\t2\n", dev_tsv="review\tstars\na\t1\nb\t2\n", test_tsv="review\nx\n"
    )
    data = load_task(own, options)
    assert [example.label for example in data.examples["test"]] == [None]
    assert len(data.examples["train"]) == len(data.examples["valid"]) == 2
    write(tmp_path, dev_tsv="review\nx\n")
    with pytest.raises(UserError, match=r"dev\.tsv:1: no column is called 'stars' \(there are review\)"):
        load_task(own, options)


def test_a_table_without_a_header_has_the_columns_that_it_is_given(tmp_path):
    options = write(tmp_path, train_tsv="1\ta\n2\tb\n1\tc\n2\td\n")
    own = table("own", train="train.tsv", text="review", label="stars", columns=("stars", "review"))
    assert texts(all_of(load_task(own, options))) == [("a",), ("b",), ("c",), ("d",)]
    own = table("own", train="train.tsv", text="text", label="stars", columns=("stars", "review"))
    with pytest.raises(UserError, match=r"train\.tsv: no column is called 'text' \(there are stars, review\)"):
        load_task(own, options)


def test_tags_in_a_table(tmp_path):
    own = table("own", train="train.tsv", text="words", label="tags", kind="tagging")
    data = load_task(own, write(tmp_path, train_tsv="words\ttags\na b\tX Y\nc\tY\nd\tX\n"))
    whole = all_of(data)
    assert [(example.words, example.label) for example in whole] == [(("a", "b"), (0, 1)), (("c",), (1,)), (("d",), (0,))]
    with pytest.raises(UserError, match=r"train\.tsv:3: 1 words but 2 tags"):
        load_task(own, write(tmp_path, train_tsv="words\ttags\na b\tX Y\nc\tY Y\n"))


GOOD = "review\tstars\na\t1\nb\t2\n"


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("", GOOD, r"train\.tsv: the file is empty; its first line must name the columns"),
        ("review\tstars\n", GOOD, r"train\.tsv: .*no examples"),
        (GOOD, "review\tstars\n\n", r"dev\.tsv: .*no examples"),
        ("text\tstars\na\t1\n", GOOD, r"train\.tsv:1: no column is called 'review' \(there are text, stars\)"),
        ("review\tstars\tstars\na\t1\t1\n", GOOD, r"train\.tsv:1: several columns are called 'stars'"),
        (GOOD + "c\n", GOOD, r"train\.tsv:4: the row has 1 fields, but the table has 2 columns"),
        (GOOD, GOOD + "\nc\t1\t\n", r"dev\.tsv:5: the row has 3 fields, but the table has 2 columns"),
        (GOOD + "c\t \n", GOOD, r"train\.tsv:4: the label is empty"),
        (GOOD, GOOD + "c\t3\n", r"dev\.tsv:4: the example has the label '3', but train's labels are 1, 2;"),
        (GOOD + "c\t3\n", GOOD, r"train\.tsv:4: the example has the label '3', but no example of .*dev\.tsv has it"),
        (GOOD, "review\tstars\na\tone\nb\ttwo\n", r"dev\.tsv:2: the example has the label 'one', but train's labels are 1, 2;"),
    ],
)
def test_what_is_wrong_in_a_table_is_said_with_its_line(tmp_path, train, dev, message):
    options = write(tmp_path, train_tsv=train, dev_tsv=dev)
    with pytest.raises(UserError, match=message) as error:
        load_task(REVIEWS, options)
    assert str(error.value).startswith(str(tmp_path)) and "; " in str(error.value)


@pytest.mark.parametrize("field", ["high", "", "nan", "inf"])
def test_a_regression_needs_finite_numbers(tmp_path, field):
    own = table("own", train="train.tsv", text="t", label="y", kind="regression")
    options = write(tmp_path, train_tsv=f"t\ty\na\t2.5\nb\t1\nc\t{field}\n")
    with pytest.raises(UserError, match=rf"train\.tsv:4: '{field}' is not "):
        load_task(own, options)


def test_text_in_another_encoding_is_told_by_byte_and_line(tmp_path):
    write(tmp_path, dev_tsv=GOOD)
    (tmp_path / "train.tsv").write_bytes(GOOD.encode() + "caf\u00e9\t1\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.tsv:4: byte 24 \(0xe9\) is not utf-8 text; convert the file to utf-8"):
        load_task(REVIEWS, {"directory": str(tmp_path)})
    wrong = table("own", train="train.tsv", text="review", label="stars", encoding="utf-9")
    with pytest.raises(UserError, match=r"train\.tsv: encoding 'utf-9' is not known"):
        load_task(wrong, {"directory": str(tmp_path)})


def test_quotes_that_do_not_close_are_told_by_the_row_that_begins(tmp_path):
    own = table("own", train="a.csv", text="t", label="y")
    options = write(tmp_path, a_csv='t,y\n"x\nx",1\n"z,1\nw,2\n')
    with pytest.raises(UserError, match=r"a\.csv:4: the row that starts here is badly quoted"):
        load_task(own, options)


def test_ids_are_all_different(tmp_path):
    own = table("own", train="train.tsv", text="t", label="y", id="n")
    with pytest.raises(UserError, match=r"train\.tsv:4: .*train\.tsv:2 also has the id '1'"):
        load_task(own, write(tmp_path, train_tsv="n\tt\ty\n1\ta\tp\n2\tb\tq\n1\tc\tp\n"))


def test_lines_of_a_label_and_a_text(tmp_path):
    own = labelled_lines("own", train="a", test="b", encoding="cp1252")
    (tmp_path / "a").write_bytes(b"NUM:dist How far \x85 ?\nHUM:ind Who ?\n\nHUM:gr Which\n")
    (tmp_path / "b").write_bytes(b"HUM x\nNUM y\n")
    data = load_task(own, {"directory": str(tmp_path)})
    assert data.labels == ("HUM", "NUM") and [example.label for example in data.examples["test"]] == [0, 1]
    train = sorted(data.examples["train"] + data.examples["valid"], key=lambda example: example.where)
    assert [(*example.texts, example.label) for example in train] == [("How far … ?", 1), ("Who ?", 0), ("Which", 0)]
    (tmp_path / "b").write_bytes(b"HUM x\nNUM\n")
    with pytest.raises(UserError, match=r"b:2: expected a label, a space and a text; correct 'NUM'"):
        load_task(own, {"directory": str(tmp_path)})


SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,v,1,"A, b. He","A, b.",He,gold,sits.,stands.,"runs, far.",,2\n'
    "1,v,1,C. She,C.,She,gold,w,x,y,z,{}\n"
)


def test_swag_choices_begin_with_the_second_sentence(tmp_path):
    options = write(tmp_path, train_csv=SWAG.format(0), val_csv=SWAG.format(3)) | {"dev": "valid"}
    data = load_task(find_task("swag"), options)
    first, second = data.examples["train"]
    assert first.texts == ("A, b.",) and first.choices == ("He sits.", "He stands.", "He runs, far.", "He ")
    assert (first.label, second.label, data.examples["valid"][1].label) == (2, 0, 3)
    assert data.labels == ()
    for label in ("4", "-1", "", "2.0"):
        write(tmp_path, val_csv=SWAG.format(label))
        with pytest.raises(UserError, match=rf"val\.csv:3: '{label}' is not a choice's number; the label must be from 0 to 3"):
            load_task(find_task("swag"), options)


def test_codah_rows_and_a_row_with_a_choice_too_few(tmp_path):
    rows = [f"o\tprompt {i}\ta\tb\t\td\t{i % 4}" for i in range(20)]
    options = write(tmp_path, full_data_tsv="\n".join(rows) + "\n")
    data = load_task(find_task("codah"), options)
    whole = all_of(data)
    assert [example.label for example in whole] == [i % 4 for i in range(20)]
    assert whole[7].texts == ("prompt 7",) and whole[7].choices == ("a", "b", "", "d")
    write(tmp_path, full_data_tsv="\n".join([*rows, "o\tprompt\ta\tb\td\t1"]))
    with pytest.raises(UserError, match=r"full_data\.tsv:21: the row has 6 fields, but the table has 7 columns"):
        load_task(find_task("codah"), options)
    with pytest.raises(UserError, match=r"task 'own': 1 choices; name the columns of two or more"):
        multiple_choice("own", train="a", text="t", choices=("c",), label="y")


def test_sms_spam_is_a_quoted_latin_1_table_with_columns_without_names(tmp_path):
    rows = [f'{("ham", "spam")[i % 2]},"call {i}, now \xa3",,,' for i in range(10)]
    (tmp_path / "spam.csv").write_bytes("\r\n".join(["v1,v2,,,", *rows]).encode("latin-1"))
    data = load_task(find_task("sms_spam"), {"directory": str(tmp_path)})
    assert data.labels == ("ham", "spam") and [len(data.examples[split]) for split in ("train", "valid", "test")] == [8, 1, 1]
    for example in all_of(data):
        number = int(example.id)
        assert example.texts == (f"call {number}, now \xa3",) and example.label == number % 2


def test_several_tasks_have_a_folder_each_or_one_for_all(tmp_path):
    own = 'from bertlab.transfer.tasks import table\n\nTASK = table("{}", train="{}.tsv", text="t", label="y")\n'
    lines = "t\ty\n" + "".join(f"the {i}\t{'AB'[i % 2]}\n" for i in range(40))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(own.format(name, name))
        (tmp_path / name / f"{name}.tsv").write_text(lines)
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    names = f"{first}/task.py+{second}/task.py"
    for directory in ("", f"{first}+{second}", f"+{second}"):
        assert list(load_tasks(names, {"directory": directory})) == ["first", "second"]
    with pytest.raises(UserError, match=r"first/second.tsv.*no such file|second\.tsv"):
        load_tasks(names, {"directory": first})
    with pytest.raises(UserError, match=r"names 3 folders for the 2 tasks .*; give one for all, or one for each"):
        load_tasks(names, {"directory": "a+b+c"})
    with pytest.raises(UserError, match=r"names a task twice"):
        load_tasks(f"{first}/task.py+{first}/task.py", {})
