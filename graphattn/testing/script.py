"""A failing case as a script to paste."""

from __future__ import annotations

from graphattn.testing.call import Kernel, Mismatch
from graphattn.testing.case import Case
from graphattn.testing.forms import tensor_code

MAX_VALUES = 4_000  # of all tensors; larger cases are not printed


def script(kernel: Kernel, case: Case, mismatch: Mismatch) -> str:
    """Return Python code that reproduces a failure, or '' if tensors are too large to print."""
    leaves = kernel.arguments(case)
    if sum(x.numel() for x in leaves.values()) > MAX_VALUES:
        return ''
    edges = kernel.form.code(case.graph, case.repeats)
    is_gradient = mismatch.result in leaves and mismatch.kind != 'writes'
    terms = {name: name if name in leaves else repr(x) for name, x in kernel.terms(case).items()}
    arguments = ['query', 'key', 'value', kernel.form_name,
                 *(f'{name}={code}' for name, code in terms.items())]
    body = [f'{kernel.form_name} = {edges}',
            *(f'{name} = {_tensor(kernel, case, x)}' for name, x in leaves.items()),
            *(f'{name}.requires_grad_()' for name in leaves if is_gradient),
            *(['torch.manual_seed(0)'] if case.dropout_p else []),
            f"out = {name_of(kernel.function)}({', '.join(arguments)})"]
    if is_gradient:
        cotangent = kernel.inward('cotangent', case.tensors['cotangent'], case)
        body.append(f'out.backward({tensor_code(cotangent)}.to(out))')
    body += _results(mismatch, f'{mismatch.result}.grad' if is_gradient else 'out')
    return '\n'.join([*_imports(kernel.function, '\n'.join(body)), '', *body])


def _tensor(kernel: Kernel, case: Case, x: object) -> str:
    code = tensor_code(x.detach().cpu())
    code = code if kernel.device.type == 'cpu' else f"{code}.to('{kernel.device}')"
    return code if case.memory == 'contiguous' else f'MEMORY[{case.memory!r}]({code})'


def _results(mismatch: Mismatch, what: str) -> list[str]:
    if mismatch.got is None or mismatch.expected is None:
        return [f'# {mismatch.message}']
    return [f'print({what})', f'# came:  {mismatch.got.tolist()}',
            f'# right: {mismatch.expected.tolist()}']


def _imports(function: object, body: str) -> list[str]:
    module, name = getattr(function, '__module__', None), getattr(function, '__qualname__', '')
    is_known = module and module != '__main__' and name.isidentifier()
    imports = {f'from {module} import {name}': is_known,
               f'# {name_of(function)} is the function under examination': not is_known,
               'import math': 'math.' in body, 'import torch': True,
               'from graphattn import BipartiteGraph': 'BipartiteGraph' in body,
               'from graphattn.testing.call import MEMORY': 'MEMORY[' in body}
    return sorted(line for line, is_needed in imports.items() if is_needed)


def name_of(function: object) -> str:
    name = getattr(function, '__name__', '')
    return name if name.isidentifier() else 'attention'
