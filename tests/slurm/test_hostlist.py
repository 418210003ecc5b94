from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm.hostlist import expand, fold
from tests.kit.cases import cases


@cases
def test_node_lists_expand(text, names):
    """What is no list of nodes stands for itself."""
    assert expand(text) == names


@given(st.data())
def test_names_survive_folding_and_any_text_expands_to_a_bounded_number_of_them(data):
    text = data.draw(st.text(alphabet="n09[]-,a ", max_size=40))
    assert len(expand(text, limit=500)) <= 500
    name = st.from_regex(r"[a-z]{1,3}(-[0-9]{1,3})?[0-9]{0,4}", fullmatch=True)
    names = data.draw(st.sets(name, max_size=30))
    assert set(expand(fold(names))) == names


def test_runs_of_numbers_fold():
    assert fold(["n1", "n2", "n3", "n7", "n09", "n10", "login"]) == "login,n[1-3,7],n[09-10]"
    assert fold(f"n{number}" for number in range(1, 129)) == "n[1-128]"
    assert (fold(["n9", "n11", "n10", "n08"]), fold(())) == ("n9,n[08,10-11]", "")
