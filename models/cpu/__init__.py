"""What only speed on a CPU needs: other forms of plain formulations, to which `dispatch.on_cpu` hands over."""
