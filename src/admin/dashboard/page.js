fetch("api/v1/status").then((answer) => answer.json()).then((status) => {
  document.getElementById("status").textContent = JSON.stringify(status, null, 2);
});
