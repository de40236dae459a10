! A Fortran program that uses what the shim wraps by Fortran's names. FORTRAN08 chooses the mpi_f08 bindings.
program fortran_calls
#ifdef FORTRAN08
  use mpi_f08
  implicit none
  type(MPI_Comm) :: half
#else
  use mpi
  implicit none
  integer :: half
#endif
  integer :: rank, ranks, error, i
  double precision :: in(100), out(100)
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, error)
  in = rank
  do i = 1, 5
    call MPI_Allreduce(in, out, 100, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
    call MPI_Bcast(in, 10, MPI_DOUBLE_PRECISION, 1, half, error)
  end do
  call MPI_Allreduce(MPI_IN_PLACE, out, 3, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
  if (rank == 0) call MPI_Send(in, 4, MPI_DOUBLE_PRECISION, 1, 9, MPI_COMM_WORLD, error)
  if (rank == 1) call MPI_Recv(in, 4, MPI_DOUBLE_PRECISION, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  if (rank == 0) print '(a,f6.1)', 'sum', out(1)
  call MPI_Finalize(error)
end program
