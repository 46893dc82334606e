"""The operators that kernels are made of: what they take and give, and their gradients.

Whatever is the same on every device is written here once, for autograd, ``torch.compile`` and
tensors without numbers. A device brings its implementation with
``torch.library.register_kernel``, as :mod:`graphattn.kernels.cpu` does. Arguments arrive validated.
"""
