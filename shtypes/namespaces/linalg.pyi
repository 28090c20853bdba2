"""The names of `sh.linalg`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.ops.einsum import matmul as matmul
from shtypes.ops.functions import linalg_block_diag as _block_diag
from shtypes.ops.functions import linalg_cho_factor as _cho_factor
from shtypes.ops.functions import linalg_cho_solve as _cho_solve
from shtypes.ops.functions import linalg_cholesky as _cholesky
from shtypes.ops.functions import linalg_cholesky_update as _cholesky_update
from shtypes.ops.functions import linalg_circulant as _circulant
from shtypes.ops.functions import linalg_companion as _companion
from shtypes.ops.functions import linalg_cond as _cond
from shtypes.ops.functions import linalg_convolution_matrix as _convolution_matrix
from shtypes.ops.functions import linalg_cross as _cross
from shtypes.ops.functions import linalg_det as _det
from shtypes.ops.functions import linalg_dft as _dft
from shtypes.ops.functions import linalg_diagonal as _diagonal
from shtypes.ops.functions import linalg_eig as _eig
from shtypes.ops.functions import linalg_eigh as _eigh
from shtypes.ops.functions import linalg_eigh_tridiagonal as _eigh_tridiagonal
from shtypes.ops.functions import linalg_eigvals as _eigvals
from shtypes.ops.functions import linalg_eigvalsh as _eigvalsh
from shtypes.ops.functions import linalg_expm as _expm
from shtypes.ops.functions import linalg_expm_frechet as _expm_frechet
from shtypes.ops.functions import linalg_fiedler as _fiedler
from shtypes.ops.functions import linalg_fiedler_companion as _fiedler_companion
from shtypes.ops.functions import linalg_funm as _funm
from shtypes.ops.functions import linalg_hadamard as _hadamard
from shtypes.ops.functions import linalg_hankel as _hankel
from shtypes.ops.functions import linalg_helmert as _helmert
from shtypes.ops.functions import linalg_hessenberg as _hessenberg
from shtypes.ops.functions import linalg_hilbert as _hilbert
from shtypes.ops.functions import linalg_householder_product as _householder_product
from shtypes.ops.functions import linalg_inv as _inv
from shtypes.ops.functions import linalg_invhilbert as _invhilbert
from shtypes.ops.functions import linalg_invpascal as _invpascal
from shtypes.ops.functions import linalg_leslie as _leslie
from shtypes.ops.functions import linalg_lstsq as _lstsq
from shtypes.ops.functions import linalg_lu as _lu
from shtypes.ops.functions import linalg_lu_factor as _lu_factor
from shtypes.ops.functions import linalg_lu_pivots_to_permutation as _lu_pivots_to_permutation
from shtypes.ops.functions import linalg_lu_solve as _lu_solve
from shtypes.ops.functions import linalg_matrix_norm as _matrix_norm
from shtypes.ops.functions import linalg_matrix_power as _matrix_power
from shtypes.ops.functions import linalg_matrix_rank as _matrix_rank
from shtypes.ops.functions import linalg_matrix_transpose as _matrix_transpose
from shtypes.ops.functions import linalg_multi_dot as _multi_dot
from shtypes.ops.functions import linalg_norm as _norm
from shtypes.ops.functions import linalg_ormqr as _ormqr
from shtypes.ops.functions import linalg_outer as _outer
from shtypes.ops.functions import linalg_pascal as _pascal
from shtypes.ops.functions import linalg_pinv as _pinv
from shtypes.ops.functions import linalg_polar as _polar
from shtypes.ops.functions import linalg_qdwh as _qdwh
from shtypes.ops.functions import linalg_qr as _qr
from shtypes.ops.functions import linalg_qr_multiply as _qr_multiply
from shtypes.ops.functions import linalg_rsf2csf as _rsf2csf
from shtypes.ops.functions import linalg_schur as _schur
from shtypes.ops.functions import linalg_slogdet as _slogdet
from shtypes.ops.functions import linalg_solve as _solve
from shtypes.ops.functions import linalg_solve_sylvester as _solve_sylvester
from shtypes.ops.functions import linalg_solve_triangular as _solve_triangular
from shtypes.ops.functions import linalg_sqrtm as _sqrtm
from shtypes.ops.functions import linalg_svd as _svd
from shtypes.ops.functions import linalg_svdvals as _svdvals
from shtypes.ops.functions import linalg_symmetric_product as _symmetric_product
from shtypes.ops.functions import linalg_tensordot as _tensordot
from shtypes.ops.functions import linalg_tensorinv as _tensorinv
from shtypes.ops.functions import linalg_tensorsolve as _tensorsolve
from shtypes.ops.functions import linalg_toeplitz as _toeplitz
from shtypes.ops.functions import linalg_trace as _trace
from shtypes.ops.functions import linalg_triangular_solve as _triangular_solve
from shtypes.ops.functions import linalg_tridiagonal as _tridiagonal
from shtypes.ops.functions import linalg_tridiagonal_solve as _tridiagonal_solve
from shtypes.ops.functions import linalg_vecdot as _vecdot
from shtypes.ops.functions import linalg_vector_norm as _vector_norm

block_diag = _block_diag
cho_factor = _cho_factor
cho_solve = _cho_solve
cholesky = _cholesky
cholesky_update = _cholesky_update
circulant = _circulant
companion = _companion
cond = _cond
convolution_matrix = _convolution_matrix
cross = _cross
det = _det
dft = _dft
diagonal = _diagonal
eig = _eig
eigh = _eigh
eigh_tridiagonal = _eigh_tridiagonal
eigvals = _eigvals
eigvalsh = _eigvalsh
expm = _expm
expm_frechet = _expm_frechet
fiedler = _fiedler
fiedler_companion = _fiedler_companion
funm = _funm
hadamard = _hadamard
hankel = _hankel
helmert = _helmert
hessenberg = _hessenberg
hilbert = _hilbert
householder_product = _householder_product
inv = _inv
invhilbert = _invhilbert
invpascal = _invpascal
leslie = _leslie
lstsq = _lstsq
lu = _lu
lu_factor = _lu_factor
lu_pivots_to_permutation = _lu_pivots_to_permutation
lu_solve = _lu_solve
matrix_norm = _matrix_norm
matrix_power = _matrix_power
matrix_rank = _matrix_rank
matrix_transpose = _matrix_transpose
multi_dot = _multi_dot
norm = _norm
ormqr = _ormqr
outer = _outer
pascal = _pascal
pinv = _pinv
polar = _polar
qdwh = _qdwh
qr = _qr
qr_multiply = _qr_multiply
rsf2csf = _rsf2csf
schur = _schur
slogdet = _slogdet
solve = _solve
solve_sylvester = _solve_sylvester
solve_triangular = _solve_triangular
sqrtm = _sqrtm
svd = _svd
svdvals = _svdvals
symmetric_product = _symmetric_product
tensordot = _tensordot
tensorinv = _tensorinv
tensorsolve = _tensorsolve
toeplitz = _toeplitz
trace = _trace
triangular_solve = _triangular_solve
tridiagonal = _tridiagonal
tridiagonal_solve = _tridiagonal_solve
vecdot = _vecdot
vector_norm = _vector_norm
