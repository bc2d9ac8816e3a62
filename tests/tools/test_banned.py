"""tools/banned.py: every ban has a snippet that breaks it, and a harmless neighbour that does not."""

import pytest

from tools.banned import check

PICKLE = [
    "import pickle",
    "import pickle as p",
    "import _pickle",
    "import cPickle",
    "import dill",
    "import marshal",
    "import shelve",
    "import joblib",
    "import copyreg",
    "import json, cloudpickle",
    "from pickle import loads",
    "from cloudpickle import dumps as pack",
    "from six.moves import cPickle",
    "from torch.serialization import pickle",
    "def f():\n    import pickle",
    "try:\n    import pickle\nexcept ImportError:\n    pass",
    "import importlib\nimportlib.import_module('pickle')",
    "import importlib as i\ni.import_module(name='dill.source')",
    "from importlib import import_module as load\nload('pickle')",
    "__import__('pickle')",
    "import pkgutil\npkgutil.resolve_name('pickle:loads')",
    "import sys\nsys.modules['pickle']",
    "import torch\ntorch.serialization.pickle.loads(b'')",
    "import torch\ngetattr(torch.serialization, 'pickle')",
    "def f(socket):\n    return socket.recv_pyobj()",
    "def f(socket):\n    socket.send_pyobj(1)",
    "def f(socket):\n    return getattr(socket, 'recv_pyobj')()",
    "import torch\ntorch.load('x')",
    "import torch\ntorch.load('x', weights_only=False)",
    "import torch\ntorch.load('x', **options)",
    "import torch as t\nt.load('x')",
    "from torch import load\nload('x')",
    "from torch import load as read\nread('x')",
    "from torch import serialization\nserialization.load('x')",
    "import torch\nengine = torch\nengine.load('x')",
    "import torch\nread = torch.load",
    "import torch\ngetattr(torch, 'load')('x')",
    "import importlib\nimportlib.import_module('torch').load('x')",
    "import functools, torch\nfunctools.partial(torch.load)",
    "import torch\ntorch.save({}, 'x')",
    "from torch import save",
    "import torch.distributed as dist\ndist.broadcast_object_list([])",
    "import numpy\nnumpy.load('x', allow_pickle=True)",
    "import numpy as np\nnp.load('x', None, True)",
    "from numpy import load\nload('x', allow_pickle=flag)",
    "import functools, numpy as np\nfunctools.partial(np.load, allow_pickle=True)",
    "import pandas\npandas.read_pickle('x')",
    "from pandas import read_pickle",
    "def f(frame):\n    frame.to_pickle('x')",
    "class A:\n    def __reduce__(self): ...",
    "class A:\n    def __reduce_ex__(self, protocol): ...",
    "class A:\n    def __getstate__(self): ...",
    "class A:\n    __reduce__ = None",
]

PROCESSES = [
    "import multiprocessing\nmultiprocessing.Queue()",
    "import multiprocessing as mp\nmp.SimpleQueue()",
    "from multiprocessing import Pipe",
    "from multiprocessing import Manager as M",
    "import multiprocessing as mp\nmp.Pool(2)",
    "import multiprocessing as mp\nmp.get_context('spawn').Queue()",
    "import multiprocessing as mp\ncontext = mp.get_context('spawn')\ncontext.Pipe()",
    "import multiprocessing.pool",
    "from multiprocessing.managers import SyncManager",
    "import torch.multiprocessing as mp\nmp.Queue()",
    "from concurrent.futures import ProcessPoolExecutor",
    "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
    "from concurrent.futures.process import ProcessPoolExecutor",
    "import logging.handlers\nlogging.handlers.SocketHandler('h', 1)",
]

ENVIRONMENT = [
    "import os\nos.environ['HOME']",
    "import os\nos.environ.get('HOME')",
    "import os\nos.getenv('HOME')",
    "import os as o\no.getenv('HOME')",
    "from os import environ",
    "from os import getenv as setting",
    "import os\nos.putenv('A', 'b')",
    "import os\ngetattr(os, 'environ')",
    "__import__('os').environ",
    "import os\nos.path.expandvars('$HOME')",
]

CODE = [
    "eval('1')",
    "exec('x = 1')",
    "import builtins\nbuiltins.eval('1')",
    "run = eval",
    "from builtins import exec as run",
]

HARMLESS = [
    "# import pickle",
    "'''pickle is banned, and so is torch.load'''",
    "text = 'import pickle; eval(os.environ)'",
    "pickle = 1\nprint(pickle)",
    "import pickleball",
    "import json\njson.loads('1')",
    "import importlib\nimportlib.import_module('json')",
    "import importlib\nimportlib.import_module(name)",
    "import sys\nsys.modules['json']",
    "def f(socket):\n    return socket.recv_multipart()",
    "import torch\ntorch.load('x', weights_only=True)",
    "import torch as t\nt.load('x', mmap=True, weights_only=True)",
    "from torch import load as read\nread('x', weights_only=True)",
    "from safetensors.torch import load_file, save_file\nsave_file({}, 'x')",
    "def f(model):\n    model.load('x')\n    model.save('x')",
    "import numpy as np\nnp.load('x')",
    "import numpy as np\nnp.load('x', allow_pickle=False)",
    "import pandas\npandas.read_csv('x')",
    "import multiprocessing as mp\nmp.cpu_count()",
    "from multiprocessing import shared_memory",
    "from multiprocessing.connection import wait",
    "import queue, asyncio\nqueue.Queue()\nasyncio.Queue()",
    "from concurrent.futures import ThreadPoolExecutor",
    "class A:\n    def reduce(self): ...",
    "import os\nos.getpid()",
    "import subprocess\nsubprocess.run([], env={})",
    "import ast\nast.literal_eval('1')",
    "def f(model):\n    model.eval()\n    model.exec()",
]


@pytest.fixture
def problems(tmp_path):
    """Writes a snippet at a path of an otherwise empty tree, and returns what the check says about it."""

    def write_and_check(snippet, path="src/mstar/thing.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(snippet)
        return check(tmp_path)

    return write_and_check


@pytest.mark.parametrize("snippet", PICKLE + PROCESSES)
@pytest.mark.parametrize("tree", ["src/mstar", "tests", "bench", "tools", "examples"])
def test_pickle_is_refused_everywhere(problems, snippet, tree):
    assert problems(snippet, f"{tree}/thing.py")


@pytest.mark.parametrize("snippet", ENVIRONMENT + CODE)
def test_environment_and_eval_are_refused_in_src(problems, snippet):
    assert problems(snippet)


@pytest.mark.parametrize("snippet", ENVIRONMENT + CODE)
def test_environment_and_eval_are_allowed_in_tests(problems, snippet):
    assert not problems(snippet, "tests/test_thing.py")


@pytest.mark.parametrize("snippet", ENVIRONMENT)
def test_config_may_read_the_environment(problems, snippet):
    assert not problems(snippet, "src/mstar/config.py")


@pytest.mark.parametrize("snippet", PICKLE + CODE)
def test_config_may_do_nothing_else(problems, snippet):
    assert problems(snippet, "src/mstar/config.py")


@pytest.mark.parametrize("snippet", HARMLESS)
def test_harmless_code_passes(problems, snippet):
    assert not problems(snippet)


def test_a_problem_says_where_why_and_what_to_write(problems):
    (problem,) = problems("import json\nimport pickle\n")
    assert str(problem) == (
        "src/mstar/thing.py:2: import of pickle: unpickling runs code that the sender chose, "
        "fix: msgspec for messages, safetensors for weights"
    )


def test_one_use_is_one_problem(problems):
    assert len(problems("import os\nos.environ.get('HOME')")) == 1
    assert len(problems("from os import environ\nenviron.get('HOME')")) == 1
    assert len(problems("import pickle\npickle.loads(pickle.dumps(1))")) == 1
