"""The names of `sh.fft`, as type checkers see them. Written by `python generate/stubs.py`."""

from typing import Any

from shtypes.core.array import Array as Array
from shtypes.ops.functions import fft_fft as _fft
from shtypes.ops.functions import fft_fft2 as _fft2
from shtypes.ops.functions import fft_fftn as _fftn
from shtypes.ops.functions import fft_fftshift as _fftshift
from shtypes.ops.functions import fft_hfft as _hfft
from shtypes.ops.functions import fft_ifft as _ifft
from shtypes.ops.functions import fft_ifft2 as _ifft2
from shtypes.ops.functions import fft_ifftn as _ifftn
from shtypes.ops.functions import fft_ifftshift as _ifftshift
from shtypes.ops.functions import fft_ihfft as _ihfft
from shtypes.ops.functions import fft_irfft as _irfft
from shtypes.ops.functions import fft_irfft2 as _irfft2
from shtypes.ops.functions import fft_irfftn as _irfftn
from shtypes.ops.functions import fft_rfft as _rfft
from shtypes.ops.functions import fft_rfft2 as _rfft2
from shtypes.ops.functions import fft_rfftn as _rfftn

fft = _fft
fft2 = _fft2
fftn = _fftn
fftshift = _fftshift
hfft = _hfft
ifft = _ifft
ifft2 = _ifft2
ifftn = _ifftn
ifftshift = _ifftshift
ihfft = _ihfft
irfft = _irfft
irfft2 = _irfft2
irfftn = _irfftn
rfft = _rfft
rfft2 = _rfft2
rfftn = _rfftn

def fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array: ...
def rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array: ...
