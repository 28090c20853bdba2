"""The names of `sh.linalg`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.ops.einsum import matmul as matmul
from shtypes.ops.einsum import tensordot as tensordot
from shtypes.ops.einsum import vecdot as vecdot
from shtypes.ops.functions import linalg_block_diag as _block_diag
from shtypes.ops.functions import linalg_cho_factor as _cho_factor
from shtypes.ops.functions import linalg_cho_solve as _cho_solve
from shtypes.ops.functions import linalg_cholesky as _cholesky
from shtypes.ops.functions import linalg_cond as _cond
from shtypes.ops.functions import linalg_cross as _cross
from shtypes.ops.functions import linalg_det as _det
from shtypes.ops.functions import linalg_diagonal as _diagonal
from shtypes.ops.functions import linalg_eig as _eig
from shtypes.ops.functions import linalg_eigh as _eigh
from shtypes.ops.functions import linalg_eigvals as _eigvals
from shtypes.ops.functions import linalg_eigvalsh as _eigvalsh
from shtypes.ops.functions import linalg_expm as _expm
from shtypes.ops.functions import linalg_inv as _inv
from shtypes.ops.functions import linalg_lstsq as _lstsq
from shtypes.ops.functions import linalg_lu as _lu
from shtypes.ops.functions import linalg_lu_factor as _lu_factor
from shtypes.ops.functions import linalg_matrix_norm as _matrix_norm
from shtypes.ops.functions import linalg_matrix_power as _matrix_power
from shtypes.ops.functions import linalg_matrix_rank as _matrix_rank
from shtypes.ops.functions import linalg_matrix_transpose as _matrix_transpose
from shtypes.ops.functions import linalg_multi_dot as _multi_dot
from shtypes.ops.functions import linalg_norm as _norm
from shtypes.ops.functions import linalg_outer as _outer
from shtypes.ops.functions import linalg_pinv as _pinv
from shtypes.ops.functions import linalg_qr as _qr
from shtypes.ops.functions import linalg_slogdet as _slogdet
from shtypes.ops.functions import linalg_solve as _solve
from shtypes.ops.functions import linalg_solve_triangular as _solve_triangular
from shtypes.ops.functions import linalg_sqrtm as _sqrtm
from shtypes.ops.functions import linalg_svd as _svd
from shtypes.ops.functions import linalg_svdvals as _svdvals
from shtypes.ops.functions import linalg_tensorinv as _tensorinv
from shtypes.ops.functions import linalg_tensorsolve as _tensorsolve
from shtypes.ops.functions import linalg_toeplitz as _toeplitz
from shtypes.ops.functions import linalg_trace as _trace
from shtypes.ops.functions import linalg_vector_norm as _vector_norm

block_diag = _block_diag
cho_factor = _cho_factor
cho_solve = _cho_solve
cholesky = _cholesky
cond = _cond
cross = _cross
det = _det
diagonal = _diagonal
eig = _eig
eigh = _eigh
eigvals = _eigvals
eigvalsh = _eigvalsh
expm = _expm
inv = _inv
lstsq = _lstsq
lu = _lu
lu_factor = _lu_factor
matrix_norm = _matrix_norm
matrix_power = _matrix_power
matrix_rank = _matrix_rank
matrix_transpose = _matrix_transpose
multi_dot = _multi_dot
norm = _norm
outer = _outer
pinv = _pinv
qr = _qr
slogdet = _slogdet
solve = _solve
solve_triangular = _solve_triangular
sqrtm = _sqrtm
svd = _svd
svdvals = _svdvals
tensorinv = _tensorinv
tensorsolve = _tensorsolve
toeplitz = _toeplitz
trace = _trace
vector_norm = _vector_norm
