"""Imports between parts, imports at all, and the public page of every package."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.forked import run_anew

ROOT = Path(__file__).parent.parent

# A unit imports itself and what stands here, nothing else of this repository.
GROUND = {'graphs', 'utils', '_checks', '_explained', '_tensors', '_splitmix'}
COMPILERS = {'_compiler', '_jit', '_threads'}
# What experiments and analysis may import of the library: all but its private modules.
ALL = {'graphattn', 'graphs', 'patterns', 'samplers', 'ops', 'functional', 'placement', 'sources',
       'layers', 'models', 'distributed', 'hugging_face', 'decoding', 'draw', 'style', 'utils',
       'extension', 'freed_memory', 'transforms'}
TRAINING = {f'experiments.{name}' for name in ('runs', 'data', 'modules', 'tasks')}
MAY_IMPORT = {
    'utils': set(),
    '_threads': set(),
    'freed_memory': set(),
    '_compiler': set(),
    '_jit': {'_compiler', 'utils'},
    '_tensors': set(),
    '_splitmix': {'_tensors'},
    '_checks': {'_tensors'},
    '_explained': {'_checks', '_tensors'},
    'style': set(),
    'extension': {'_checks', '_tensors', '_jit', '_threads'},
    'graphs': {'_checks', '_explained', '_tensors', '_compiler', '_jit', 'style', 'utils'},
    'draw': {'graphs', '_checks', 'style'},
    # Patterns, samplers and operations do not know one another, but that samplers draw by them.
    'patterns': GROUND,
    'ops': GROUND | COMPILERS,
    'samplers': GROUND | {'ops'},
    # What flows knows neither how edges were placed nor how they were drawn.
    'functional': GROUND | {'ops', '_compiler'},
    'placement': GROUND | {'ops', 'functional'},
    'sources': GROUND | {'patterns', 'samplers', 'ops', 'functional'},
    # Layers take a pattern where a source is expected; the rest of it is the sources' affair.
    'layers': GROUND | {'patterns', 'ops', 'functional', 'placement', 'sources'},
    'models': GROUND | {'patterns', 'functional', 'sources', 'layers'},
    'hugging_face': GROUND | {'patterns', 'ops', 'functional', 'placement', 'sources', 'layers'},
    'distributed': GROUND | {'functional', 'placement', 'sources', 'layers', 'decoding'},
    'compile': {'graphs', 'patterns', 'samplers', 'ops', 'functional'},
    'decoding': GROUND | {'functional', 'placement'},
    # What examines kernels is imported by none of them.
    'testing': {'_checks', 'graphs', 'patterns', 'ops', 'functional'},
    'transforms': {'_checks', '_explained', '_tensors', 'graphs', 'patterns'},
    'experiments.signals': set(),
    'experiments': {'experiments.runs', 'experiments.signals'},
    'experiments.runs': ALL | {'experiments.signals'},
    'experiments.data': ALL | {'experiments.runs'},
    # Modules and tasks do not know one another: what passes between them is data.
    'experiments.modules': ALL | {'experiments.runs', 'experiments.data'},
    'experiments.tasks': ALL | {'experiments.runs', 'experiments.data'},
    'experiments.train': ALL | TRAINING | {'experiments.signals'},
    'experiments.compare': ALL | {'experiments.runs'},
    'experiments.predict': ALL | TRAINING,
    'experiments.compile': {'compile', 'experiments.data'},
    'experiments.entry': {'experiments.cli', 'experiments.signals', 'testing'},
    'experiments.quick_help': set(),
    'experiments.completion': set(),
    'experiments.cli': {'ops', 'graphattn', 'utils', 'experiments.quick_help', 'experiments.runs',
                        'experiments.completion', 'experiments.signals', 'analysis'},
    'experiments.baselines': ALL,
    'experiments.papers': ALL | TRAINING | {'experiments.train', 'experiments.predict',
                                            'experiments.baselines', 'experiments.benchmarks',
                                            'experiments.surgery', 'experiments.sparsify',
                                            'analysis'},
    # It writes the pages of analysis.
    'experiments.surgery': ALL | {'experiments.runs', 'experiments.data', 'analysis'},
    'experiments.sparsify': ALL | {'experiments.runs', 'experiments.surgery'},
    'experiments.benchmarks': ALL | {'experiments.runs', 'experiments.baselines'},
    'analysis': {'graphattn', 'graphs', 'patterns', 'samplers', 'functional', 'sources', 'models',
                 'distributed', 'hugging_face', 'draw', 'style', 'utils',
                 'experiments.runs', 'experiments.signals'},
    'graphattn': {'graphs'},  # the public page
}

# Too heavy for `import graphattn`; inside a function they are welcome.
HEAVY = {'lightning', 'pytorch_lightning', 'transformers', 'matplotlib', 'ortools', 'datasets',
         'sklearn', 'triton'}
ON_GPUS = re.compile(r'graphattn\.ops\.(\w+\.)?triton')
FOR_DEVICES = re.compile(r'graphattn\.ops\.(\w+\.)?(cpu|triton)')

def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


PATHS = sorted(path for folder in ('graphattn', 'experiments', 'analysis')
               for path in (ROOT / folder).rglob('*.py'))
MODULES = {module_name(path): path for path in PATHS}
LIBRARY = {name: path for name, path in MODULES.items() if path.is_relative_to(ROOT / 'graphattn')}
PACKAGES = [module_name(path) for path in LIBRARY.values() if path.name == '__init__.py']


def unit_of(module: str) -> str | None:
    """The part of the house that ``module`` belongs to; ``None`` for other people's."""
    top, *rest = module.split('.')
    if top == 'graphattn':
        return rest[0] if rest else top
    if top == 'experiments':
        return '.'.join([top, *rest[:1]])
    return top if top in MAY_IMPORT else None


def statements(tree: ast.AST, in_functions: bool = False) -> Iterator[ast.AST]:
    """Yield what runs on import, or ever: everything outside ``if TYPE_CHECKING`` and functions."""
    for child in ast.iter_child_nodes(tree):
        is_typing = isinstance(child, ast.If) and 'TYPE_CHECKING' in ast.unparse(child.test)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if is_typing or is_function and not in_functions:
            continue
        yield child
        yield from statements(child, in_functions)


def imported(nodes: Iterator[ast.AST], module: str, is_package: bool = False) -> set[str]:
    """The modules that ``nodes`` of ``module`` import, by their absolute names."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split('.')[:None if is_package else -1]
            base = package[:len(package) + 1 - node.level] if node.level else []
            base = '.'.join([*base, *filter(None, [node.module])])
            submodules = {f'{base}.{alias.name}' for alias in node.names} & MODULES.keys()
            has_other_names = len(submodules) < len(node.names)
            names |= submodules | ({base} if has_other_names or not submodules else set())
    return names


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path, on_import: bool) -> set[str]:
    nodes = statements(tree_of(path), in_functions=not on_import)
    return imported(nodes, module_name(path), path.name == '__init__.py')


def test_imports_point_down():
    assert {module_name(path): names for path in PATHS if (names := from_above(path))} == {}


def from_above(path: Path) -> set[str]:
    unit = unit_of(module_name(path))
    return {name for name in imports_of(path, on_import=False)
            if unit_of(name) not in {None, unit} | MAY_IMPORT[unit]}


@pytest.mark.parametrize('top', ['graphattn', 'experiments', 'analysis'])
def test_no_circle_between_files(top):
    graph = {name: imports_of(path, on_import=False) & MODULES.keys()
             for name, path in MODULES.items() if name.split('.')[0] == top}
    assert circle(graph) is None


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Some modules of which each imports the next, and the last the first."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]


def test_private_names_stay_in_their_files():
    assert {module_name(path): names for path in PATHS if (names := private_names(path))} == {}


def private_names(path: Path) -> set[str]:
    """Return private names that are imported from our files."""
    return {alias.name for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom) and unit_of(node.module or 'graphattn')
            for alias in node.names if alias.name.startswith('_')}


@pytest.mark.slow
def test_progress_bars_are_drawn_on_terminals_alone():
    assert {module_name(path): lines for path in PATHS if (lines := bars_anywhere(path))} == {}


def bars_anywhere(path: Path) -> list[int]:
    """Return the lines of progress bars that would fill a file, too."""
    return [node.lineno for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ('tqdm', 'trange')
            and not any(option.arg == 'disable' and ast.unparse(option.value).endswith('None')
                        for option in node.keywords)]


def test_experiments_and_analysis_import_what_is_public():
    users = [path for name, path in MODULES.items() if name not in LIBRARY]
    assert {module_name(path): names for path in users if (names := not_public(path))} == {}


def not_public(path: Path) -> set[str]:
    """Return what is imported of the library that is private, or in no ``__all__``."""
    found = [(node.module, alias.name) for node in ast.walk(tree_of(path))
             if isinstance(node, ast.ImportFrom) and node.module in LIBRARY for alias in node.names]
    return {f'{module}.{name}' for module, name in found if '._' in f'{module}.{name}' or not (
        f'{module}.{name}' in LIBRARY or name in public_page(LIBRARY[module]))}


def public_page(path: Path) -> list[str]:
    """Return the names in ``__all__``."""
    pages = [node.value for node in tree_of(path).body if isinstance(node, ast.Assign)
             and ast.unparse(node.targets[0]) == '__all__']
    return ast.literal_eval(pages[0]) if pages else []


def test_library_imports_nothing_heavy():
    assert {module: heavy for module in LIBRARY if (heavy := heavy_imports(module))} == {}


def heavy_imports(module: str) -> set[str]:
    """Return imports that take seconds. PyG does where transformers is installed too, and graphs
    and their analysis work without it."""
    allowed = {'triton'} if ON_GPUS.match(module) else set()  # on first use
    if unit_of(module) in {'layers', 'models', 'sources', 'transforms'} or (
            module == 'graphattn.graphs.from_pyg'):
        allowed.add('torch_geometric')
    tops = {name.split('.')[0] for name in imports_of(LIBRARY[module], on_import=True)}
    return tops & (HEAVY | {'torch_geometric'}) - allowed


@pytest.mark.parametrize('package', PACKAGES)
def test_public_page_lists_names_that_exist(package):
    if package == 'graphattn.ops.triton':
        pytest.importorskip('triton', reason="backend 'triton' needs triton")
    module = importlib.import_module(package)
    assert module.__doc__ and len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


WITHOUT_EXTRAS = """
import importlib
for module in {modules}:
    importlib.import_module(module)

import torch
from graphattn import BipartiteGraph
from graphattn.functional import edge_attention
graph = BipartiteGraph.from_mask(torch.ones(3, 4, dtype=torch.bool))
query, key = torch.randn(3, 2, 5), torch.randn(4, 2, 5)
assert edge_attention(query, key, key, graph).shape == (3, 2, 5)
try:
    edge_attention(query, key, key, graph, backend='gather_ext')
except ImportError as error:
    assert 'pip install' in str(error)
else:
    raise AssertionError('gather_ext ran without torch_scatter')
"""


@pytest.mark.slow
def test_library_runs_without_extras():
    missing = sorted(HEAVY | {'torch_scatter', 'torch_sparse', 'numba', 'triton'})
    compiled = {name for name, path in LIBRARY.items() if 'jit' in path.read_text()}
    modules = sorted(LIBRARY.keys() - compiled - {'graphattn.ops.attention.gather_ext'})
    modules = [name for name in modules if not FOR_DEVICES.match(name)]
    result = run_anew(WITHOUT_EXTRAS.format(modules=modules), missing=missing)
    assert result.returncode == 0, result.stderr


UNDER_A_DEFAULT_DEVICE = """
import importlib
import torch
torch.set_default_device('meta')
for name in {modules}:
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_library_is_imported_under_a_default_device():
    result = run_anew(UNDER_A_DEFAULT_DEVICE.format(modules=sorted(LIBRARY)))
    assert result.returncode == 0, result.stderr


IMPORTS = """
import sys
import torch, scipy.sparse
before = set(sys.modules)
for statement in {statements}:
    exec(statement)
    packages = {{name.split('.')[0] for name in sys.modules.keys() - before}}
    print(*sorted(packages - sys.stdlib_module_names))
    print(*sorted({{'networkx', 'torch._dynamo', 'torch_geometric'}} & sys.modules.keys()))
    print(len(sys.modules.keys() - before))
"""
ANALYSIS = ('import analysis.certificate, analysis.command, analysis.communication, '
            'analysis.expander, analysis.hamiltonian, analysis.mixing, '
            'analysis.spectrum, analysis.universality')


@pytest.mark.slow
def test_graphs_and_their_analysis_are_imported_quickly():
    script = IMPORTS.format(statements=['import graphattn', ANALYSIS, 'import analysis.report'])
    result = subprocess.run([sys.executable, '-c', script], text=True, capture_output=True,
                            check=True)  # a new process, which has imported nothing
    packages, slow, count, of_analysis, _, _, _, all_slow, all_count = result.stdout.splitlines()
    assert set(packages.split()) == {'graphattn', 'scipy'}
    assert 'matplotlib' not in of_analysis.split()  # only figures need it
    assert slow == all_slow == ''
    assert int(count) < 150 and int(all_count) < 500  # torch alone has 1,000
