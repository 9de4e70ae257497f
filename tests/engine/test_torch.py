"""Tensors, modules and loaders of torch itself; ``make test-torch`` runs them."""

import warnings

import numpy as np
import optuna
import pandas as pd
import pytest

from optuna_samplers import DPGIBOSampler
from privbo_plugins import losses
from privbo_plugins.convert import as_labels, as_losses, as_reward
from privbo_plugins.errors import NotLossesError

torch = pytest.importorskip("torch", reason="torch is not installed (the torch extra)")
from torch.utils import data  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
    ),
]
DTYPES = ["float64", "float32", "bfloat16", "float16", "int64", "bool"]
N = 23


def records():
    """Pairs of 4 numbers and one of 3 classes."""
    coins = torch.Generator().manual_seed(0)
    X = torch.randn(N, 4, generator=coins)
    return data.TensorDataset(X, torch.randint(3, (N,), generator=coins))


def network():
    """A network whose training mode mixes records and draws."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5),
        torch.nn.Linear(8, 3),
    )  # fmt: skip
    model(torch.randn(64, 4))  # running means
    return model


def cross_entropy():
    return torch.nn.CrossEntropyLoss(reduction="none")


def by_hand(model, dataset):
    """Each record's cross entropy by numpy, one after another."""
    parameters = {name: value.double().numpy() for name, value in model.state_dict().items()}
    found = []
    for x, y in dataset:
        h = parameters["0.weight"] @ x.double().numpy() + parameters["0.bias"]
        spread = np.sqrt(parameters["1.running_var"] + 1e-5)
        h = (h - parameters["1.running_mean"]) / spread * parameters["1.weight"]
        z = parameters["3.weight"] @ (h + parameters["1.bias"]) + parameters["3.bias"]
        found.append(np.log(np.exp(z).sum()) - z[int(y)])
    return found


# Tensors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grad", [False, True])
def test_a_tensor_is_its_numbers(device, dtype, grad):
    kind = getattr(torch, dtype)
    if grad and not kind.is_floating_point:
        pytest.skip("only floats have gradients")
    given = torch.tensor([0.0, 1.0, 0.1, 2.5, 3.0], device=device).to(kind)
    given.requires_grad_(grad)
    expected = [float(entry) for entry in given.tolist()]
    assert as_losses(given).tolist() == expected
    assert as_losses(given * 1).tolist() == [float(entry) for entry in (given * 1).tolist()]
    assert as_reward(given[2]) == expected[2]
    assert as_losses([entry for entry in given]).tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_losses_take_tensors_of_every_precision(device, dtype):
    P = torch.tensor([[0.75, 0.25], [0.25, 0.75], [1.0, 0.0]], device=device, requires_grad=True)
    P, y = P.to(getattr(torch, dtype)), torch.tensor([0, 1, 1], device=device)
    for loss in (losses.brier, losses.bounded_log, losses.log):
        assert np.array_equal(loss(y, P), loss([0, 1, 1], P.detach().double().cpu().numpy()))
    assert losses.squared(y, P[:, 1]).tolist() == [0.0625, 0.0625, 1.0]
    assert losses.zero_one(y, P.argmax(1)).tolist() == [0.0, 0.0, 1.0]
    labels = as_labels(y)
    assert labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_study_takes_tensors_with_gradients(dtype):
    targets = torch.linspace(0, 1, 300)

    def objective(trial):
        x = torch.tensor(trial.suggest_float("x", 0, 1), requires_grad=True)
        return ((x - targets) ** 2).to(getattr(torch, dtype))

    sampler = DPGIBOSampler(mu=1, n_trials=12, seed=0)
    study = optuna.create_study(sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the noise, which 300 records do not stand
        study.optimize(sampler.private(objective))
    assert len(study.trials) > 5
    assert sampler.guarantee(study).protected


# One loss a record ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 2, 7, N, 100])
def test_each_record_has_its_loss_as_by_hand(device, size):
    dataset, model = records(), network()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    expected = by_hand(model, dataset)
    given = losses.per_record(cross_entropy(), model.to(device), data.DataLoader(dataset, size))
    assert given.dtype == np.float64
    assert np.allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert (
        [module.training for module in model.modules()] == modes == [True, True, False, True, True]
    )


def test_a_module_that_fails_keeps_its_mode():
    model = network()
    with pytest.raises(RuntimeError):
        losses.per_record(cross_entropy(), model, data.DataLoader(data.TensorDataset(
            torch.zeros(3, 5), torch.zeros(3, dtype=torch.long))))  # fmt: skip
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


def test_a_record_changes_its_own_loss_alone():
    dataset, model = records(), network()
    before = losses.per_record(cross_entropy(), model, data.DataLoader(dataset, 8))
    dataset.tensors[0][5] = torch.tensor([torch.nan, torch.inf, 1e30, -3.0])
    after = losses.per_record(cross_entropy(), model, data.DataLoader(dataset, 8))
    assert np.flatnonzero(~(before == after)).tolist() == [5]


def test_no_gradient_is_recorded():
    model, seen = network(), []

    def loss(output, target):
        seen.append(output.requires_grad)
        return cross_entropy()(output, target)

    losses.per_record(loss, model, data.DataLoader(records(), 8))
    assert seen == [False] * 3


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_a_model_of_another_precision_is_evaluated(dtype):
    dataset, kind = records(), getattr(torch, dtype)
    expected = by_hand(network(), dataset)
    loader = data.DataLoader(
        data.TensorDataset(dataset.tensors[0].to(kind), dataset.tensors[1]), 8
    )
    given = losses.per_record(cross_entropy(), network().to(kind), loader)
    assert np.allclose(given, expected, atol=0.1)


def test_losses_with_a_bound_and_inputs_of_several_tensors():
    X, y = records().tensors
    inner = network()

    class Takes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, given):
            return self.inner(given["both"][0] + given["both"][1])

    pairs = [({"both": (x / 2, x / 2)}, label) for x, label in zip(X, y, strict=True)]
    given = losses.per_record(
        lambda output, target: losses.bounded_log(target, output.softmax(1)),
        Takes(), data.DataLoader(pairs, 8),
    )  # fmt: skip
    inner.eval()
    with torch.no_grad():
        expected = losses.bounded_log(y.numpy(), inner(X).softmax(1).numpy())
    assert np.allclose(given, expected, atol=1e-6)


def numbered():
    """The records, each with its number in the data set."""
    return data.TensorDataset(*records().tensors, torch.arange(N))


NUMBERED = {
    "in order": lambda of: data.DataLoader(of, 5),
    "shuffle": lambda of: data.DataLoader(of, 5, shuffle=True),
    "list": lambda of: data.DataLoader(of, 5, sampler=torch.randperm(N).tolist()),
    "as they come": lambda of: data.DataLoader(of, 5, num_workers=2, in_order=False),
    "batches": lambda of: data.DataLoader(
        of, batch_sampler=data.BatchSampler(data.RandomSampler(of), 8, False)
    ),
}


@pytest.mark.parametrize("loader", NUMBERED.values(), ids=NUMBERED.keys())
def test_records_that_bring_their_numbers_come_in_any_order(loader):
    model = network()
    expected = losses.per_record(cross_entropy(), model, data.DataLoader(records(), 5))
    given = losses.per_record(cross_entropy(), model, loader(numbered()))
    assert np.allclose(given, expected, atol=1e-6)


class Backwards(data.SequentialSampler):
    def __iter__(self):
        return iter(range(N - 1, -1, -1))


class Streamed(data.IterableDataset):
    def __iter__(self):
        return iter(records())


UNORDERED = {
    "shuffle": lambda of: data.DataLoader(of, 8, shuffle=True),
    "random": lambda of: data.DataLoader(of, 8, sampler=data.RandomSampler(of)),
    "weighted": lambda of: data.DataLoader(
        of, 8, sampler=data.WeightedRandomSampler(torch.ones(N), N)
    ),
    "subset": lambda of: data.DataLoader(of, 8, sampler=data.SubsetRandomSampler(range(N))),
    "distributed": lambda of: data.DataLoader(
        of, 8, sampler=data.DistributedSampler(of, num_replicas=1, rank=0)
    ),
    "batches": lambda of: data.DataLoader(
        of, batch_sampler=data.BatchSampler(data.RandomSampler(of), 8, False)
    ),
    "lists": lambda of: data.DataLoader(of, batch_sampler=[[1, 0], [2]]),
    "subclass": lambda of: data.DataLoader(of, 8, sampler=Backwards(of)),
    "list": lambda of: data.DataLoader(of, 8, sampler=list(range(N))),
    "stream": lambda of: data.DataLoader(Streamed(), 8),
    "as they come": lambda of: data.DataLoader(of, 8, num_workers=1, in_order=False),
    "no batches": lambda of: data.DataLoader(of, batch_size=None),
    "dropped": lambda of: data.DataLoader(of, 8, drop_last=True),
    "no loader": lambda of: [of.tensors],
}


@pytest.mark.parametrize("loader", UNORDERED.values(), ids=UNORDERED.keys())
def test_a_loader_without_a_known_order_is_refused(loader):
    with pytest.raises(ValueError, match=r"shuffle=False, drop_last=False and in_order=True"):
        losses.per_record(cross_entropy(), network(), loader(records()))


@pytest.mark.parametrize("loss", [
    torch.nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(reduction="sum"),
    torch.nn.functional.cross_entropy, lambda output, target: output.mean().item(),
    lambda output, target: output, lambda output, target: output[:, :1] - target,
    lambda output, target: output[1:, 0], lambda output, target: output[:0, 0],
    lambda output, target: None,
])  # fmt: skip
def test_what_is_no_loss_a_record_is_refused(loss):
    with pytest.raises(NotLossesError, match=r"one value a record"):
        losses.per_record(loss, network(), data.DataLoader(records(), 8))


def test_triples_without_numbers_are_refused():
    X, y = records().tensors
    with pytest.raises(ValueError, match=r"pairs \(input, target\)"):
        losses.per_record(cross_entropy(), network(), data.DataLoader(data.TensorDataset(X, y, y)))


# In a study -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_refuses_losses_in_a_loaders_other_order(shuffle):
    """Whoever loops by hand gives the labels that the loader has visited."""
    model = network().eval()
    coins = torch.Generator().manual_seed(2)

    def objective(trial):
        scale, ids, found = trial.suggest_float("scale", 0.1, 1), [], []
        for x, y, i in data.DataLoader(numbered(), 8, shuffle=shuffle, generator=coins):
            found.append(cross_entropy()(scale * model(x), y))
            ids.append(i)
        return pd.Series(torch.cat(found).detach().numpy(), index=torch.cat(ids).numpy())

    sampler = DPGIBOSampler(mu=1, n_trials=6, seed=0)
    study = optuna.create_study(sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if shuffle:
            with pytest.raises(ValueError, match="in another order"):
                study.optimize(sampler.private(objective))
        else:
            study.optimize(sampler.private(objective))
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert (len(finished) == 1) == shuffle
